"""servetune: an adaptive auto-tuner for LLM inference servers."""

__version__ = "0.1.0"
