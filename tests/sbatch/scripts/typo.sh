#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --time=tomorrow

python train.py
