"""One job and its attempts: what is known of them, which states follow, and how an attempt's end is read."""
