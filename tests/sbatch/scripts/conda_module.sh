#!/bin/bash -l
#SBATCH --job-name=finetune
#SBATCH --partition=gpu,gpu-long
#SBATCH --gres=gpu:v100:2
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=10
#SBATCH --export=ALL,HF_HOME=/scratch/hf

module purge
module load cuda/12.4 anaconda3
source "$(conda info --base)/etc/profile.d/conda.sh"
conda activate finetune
python finetune.py
