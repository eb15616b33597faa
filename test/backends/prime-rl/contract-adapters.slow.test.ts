/** The contract of trainers over the adapter of prime-rl on one rank, and of its adapters: see contract.slow.test.ts. */
import { trainerContract } from '../../../backends/testing/index.ts';
import { openOn, promises } from './contract-setup.ts';

const open = openOn(1);

trainerContract('prime-rl’s trainer on one, as a stand-in', {
  open,
  promises: { ...promises, aggregations: ['token'], temperatures: [0.7], exportsModels: false },
});

trainerContract('prime-rl’s trainer with adapters, as a stand-in', {
  open,
  part: { lora: { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] }, seed: 3 },
  // It begins with new adapters alone.
  promises: { ...promises, aggregations: ['token'], startsAfresh: false },
});
