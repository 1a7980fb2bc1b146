#!/bin/bash
#SBATCH --job-name=ddp
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=1-00:00:00

export OMP_NUM_THREADS=4
torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE train.py --epochs 90
