/** The contract of trainers over the adapter of prime-rl, with a stand-in that speaks its files. test/engines has the real one. */
import { trainerContract } from '../../../backends/testing/index.ts';
import { openOn, promises } from './contract-setup.ts';

trainerContract('prime-rl’s trainer on two ranks, as a stand-in', { open: openOn(2), promises });
