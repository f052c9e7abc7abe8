"""`python -m servetune`."""

from servetune.cli import main

main()
