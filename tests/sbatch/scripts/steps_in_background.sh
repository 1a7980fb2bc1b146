#!/bin/bash
#SBATCH --job-name=many
#SBATCH --gpus=2
#SBATCH --ntasks=2

for seed in 1 2 3 4; do
    srun --exclusive -N1 -n1 --gpus=1 bash -c "echo seed $seed on \$CUDA_VISIBLE_DEVICES" &
done
wait
