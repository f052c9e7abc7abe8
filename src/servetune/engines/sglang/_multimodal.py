"""Architectures that see or hear, as the engine lists them (`configs/model_config.py:multimodal_model_archs`)."""

from __future__ import annotations

_LISTED = """
    BailingMM2NativeForConditionalGeneration BailingMMNativeForConditionalGeneration
    BailingMoeV3VLForConditionalGeneration CLIPModel Cohere2VisionForConditionalGeneration
    Cosmos3EdgeForConditionalGeneration DeepseekOCRForCausalLM DeepseekVL2ForCausalLM DiffusionGemmaForBlockDiffusion
    Dots3NoteForCausalLM DotsOCRForCausalLM DotsVLMForCausalLM EmbeddingGemma2Model
    Ernie4_5_VLMoeForConditionalGeneration Gemma3ForConditionalGeneration Gemma3nForConditionalGeneration
    Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration Glm4vForConditionalGeneration
    Glm4vMoeForConditionalGeneration Glm5NextForConditionalGeneration GlmAsrForConditionalGeneration
    GlmImageForConditionalGeneration GlmOcrForConditionalGeneration Grok1AForCausalLM Grok1VForCausalLM
    InternS1ForConditionalGeneration InternS1ProForConditionalGeneration InternS2MobiusForConditionalGeneration
    InternS2PreviewForConditionalGeneration InternVLChatModel JetVLMForConditionalGeneration
    KimiK25ForConditionalGeneration KimiVLForConditionalGeneration Lfm2VlForConditionalGeneration
    LightOnOCRForConditionalGeneration Llama4ForConditionalGeneration LlavaForConditionalGeneration
    LlavaLlamaForCausalLM LlavaMistralForCausalLM LlavaQwenForCausalLM LlavaVidForCausalLM
    LocateAnythingForConditionalGeneration MiDashengLMModel MiMoV2ASRForCausalLM MiniCPMO MiniCPMV
    MiniMaxM3SparseForConditionalGeneration Mistral3ForConditionalGeneration MllamaForConditionalGeneration
    MossVLForConditionalGeneration MultiModalityCausalLM MuseGlimmerForConditionalGeneration
    MuseSparkForConditionalGeneration NVILAForConditionalGeneration NVILALiteForConditionalGeneration
    NemotronH_Nano_Omni_Reasoning_V3 NemotronH_Nano_VL_V2 NemotronH_Omni_Reasoning_V3 POINTSV15ChatModel
    PaddleOCRVLForConditionalGeneration Phi4MMForCausalLM PixtralForConditionalGeneration
    Qwen2AudioForConditionalGeneration Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration
    Qwen3ASRForConditionalGeneration Qwen3OmniMoeForConditionalGeneration Qwen3VLForConditionalGeneration
    Qwen3VLMoeForConditionalGeneration Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration
    Qwen4ExpForConditionalGeneration Sarashina2VisionForCausalLM Step3VLForConditionalGeneration
    Step3p7ForConditionalGeneration StepVLForConditionalGeneration UnlimitedOCRForCausalLM
    VoxtralForConditionalGeneration WhisperForConditionalGeneration
"""
#: Of 0.5.9, 0.5.13 and 0.5.23 together; their automatic memory fraction is lowered by the size of the vision tower.
MULTIMODAL_ARCHITECTURES = frozenset(_LISTED.split())
#: Of these, served as text unless `--enable-multimodal` is given.
TEXT_BY_DEFAULT = frozenset(
    {
        "Gemma3ForConditionalGeneration",
        "InklingForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "Step3VLForConditionalGeneration",
    }
)
