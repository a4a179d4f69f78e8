"""The ways to attend that can be asked for."""

ATTENTION = {
    "auto": "PyTorch's choice, cuDNN apart",
    "naive": "every matrix written out",
    "math": "PyTorch's reference",
    "flash": "FlashAttention",
    "efficient": "xFormers' memory-efficient kernel",
    "cudnn": "cuDNN's fused attention",
}
