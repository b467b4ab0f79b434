"""What lies in an encoder's folder.

encoder.json            its EncoderSpec, without places on the machine that made it
config.json, tokenizer  as Hugging Face writes them (text only)
seeded.json             how both sets below follow from a seed, where they do (see `tasks.starts`)
frozen.safetensors      tensors that are never trained, so they travel once
shared.safetensors      the initial parameter set: every other tensor of its state_dict, under the same name
"""

DECLARATION = "encoder.json"
SEEDED = "seeded.json"
FROZEN = "frozen.safetensors"
SHARED = "shared.safetensors"
