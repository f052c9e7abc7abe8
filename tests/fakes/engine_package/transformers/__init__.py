"""What the engine asks of transformers while it is imported."""


class AutoConfig:
    @staticmethod
    def register(model_type, config, exist_ok=False):
        pass
