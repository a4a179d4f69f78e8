"""The attention back ends that can be requested."""

ATTENTION = {
    "auto": "PyTorch's choice, except cuDNN",
    "naive": "every matrix written out",
    "math": "PyTorch's reference",
    "flash": "FlashAttention",
    "efficient": "xFormers' memory-efficient kernel",
    "cudnn": "cuDNN's fused attention",
}
