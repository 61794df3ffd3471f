"""What random programs are good at finding: `faults` that there were, put back."""
