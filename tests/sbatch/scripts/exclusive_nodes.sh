#!/bin/bash
#SBATCH --nodes=4
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --mem=0
#SBATCH --time=3-00:00:00
#SBATCH --account=proj42
#SBATCH --qos=high
#SBATCH --exclude=node[03-05],node17

srun python pretrain.py
