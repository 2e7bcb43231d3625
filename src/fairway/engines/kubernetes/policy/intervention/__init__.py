"""Help Kueue keep promises that it does not keep by itself: preemption, starvation, decayed usage."""
