"""What the policy `tide` plans with: what it expects of jobs and nodes, its queue, victims, and room for due jobs."""
