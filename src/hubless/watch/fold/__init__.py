"""Records folded into what runs came to, once, for every view of them."""
