"""Jobs on the virtual engine: submit them, run their scripts, mirror them."""
