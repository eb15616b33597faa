/** A part of the fault matrix, quick enough for every `npm run test:all`. */
import { testCells } from './suite.ts';

testCells([
  { row: 'rollout worker killed', column: 'generate' },
  { row: 'rollout worker killed', column: 'score' },
  { row: 'GPU worker killed', column: 'train' },
  { row: 'GPU worker killed', column: 'trained' },
  { row: 'orchestrator worker killed', column: 'commit' },
  { row: 'orchestrator worker killed', column: 'plan' },
  { row: 'Temporal server killed', column: 'trained' },
  { row: 'activity fails', column: 'score' },
  { row: 'activity done twice', column: 'trained' },
  { row: 'activity done twice', column: 'commit' },
  { row: 'engine process killed (real engine)', column: 'commit' },
  { row: 'GPU worker lost, one that trained another model takes over (real engine)', column: 'train' },
  { row: 'Tinker server killed', column: 'optim_step' },
  { row: 'torchrun killed (prime-rl)', column: 'rank_files' },
  { row: 'vLLM killed', column: 'load_lora_adapter' },
]);
