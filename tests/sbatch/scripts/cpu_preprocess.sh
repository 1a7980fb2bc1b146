#!/bin/bash
#SBATCH --job-name=preprocess
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=2G
#SBATCH --hint=nomultithread

srun -l bash -c 'echo shard $SLURM_PROCID of $SLURM_NTASKS on $SLURM_CPUS_ON_NODE CPUs'
