"""What nodes have, who holds it and where a job fits: books, topology, eligibility, placing, pools."""
