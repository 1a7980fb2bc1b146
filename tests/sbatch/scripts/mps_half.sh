#!/bin/bash
#SBATCH --job-name=probe
#SBATCH --gres=mps:50
#SBATCH --mem=8G

python probe.py
