#!/bin/bash
#SBATCH --gpus=1
#SBATCH --signal=SIGUSR1@90
#SBATCH --time=2-12
#SBATCH --no-requeue

srun python train_lightning.py
