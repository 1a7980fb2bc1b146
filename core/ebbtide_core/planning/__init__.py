"""What policies plan with: the draft of a plan, the steps that several of them share, and their indexes."""
