"""Reports as files and text: formats (`formats/`, one module each) and what writes them."""
