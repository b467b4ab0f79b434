"""What lies in an encoder's folder.

encoder.json            its EncoderSpec, without places on the machine that made it
config.json, tokenizer  as Hugging Face writes them (text only)
frozen.safetensors      tensors that are never trained, so they travel once
shared.safetensors      the initial parameter set: every other tensor of its state_dict, under the same name
"""

DECLARATION = "encoder.json"
FROZEN = "frozen.safetensors"
SHARED = "shared.safetensors"
