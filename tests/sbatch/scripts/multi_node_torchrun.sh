#!/bin/bash
#SBATCH --job-name=multinode
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=4

nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
head_node=${nodes[0]}
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname --ip-address)
echo "first node: $head_node_ip"
srun bash -c 'echo "node $SLURM_NODEID of $SLURM_NNODES: torchrun --nnodes $SLURM_NNODES --node_rank $SLURM_PROCID"'
