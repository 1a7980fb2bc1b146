"""What the policy `fair-share` plans with: groups, their claims to shares, and who is granted how much."""
