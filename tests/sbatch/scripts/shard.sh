#!/bin/bash
#SBATCH --gres=shard:2
#SBATCH --mem=8G

python probe.py
