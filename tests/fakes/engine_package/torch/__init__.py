"""What the engine asks of torch, on a machine without a GPU."""

import types

version = types.SimpleNamespace(cuda=None)
cuda = types.SimpleNamespace(is_available=lambda: False)
library = types.SimpleNamespace(register_fake=lambda *a, **k: None)
