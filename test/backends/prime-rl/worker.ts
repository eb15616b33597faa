import { lossOf, planOf, rowsOf } from '../../../backends/testing/index.ts';
import { PrimeRlTrainer } from '../../../backends/trainer/prime-rl.ts';
import { batchOf } from '../../../core/rl/learning/batch.ts';

/** A process that trains by prime-rl, for tests that kill it. Arguments: the Python, the model. */
const [python, model] = process.argv.slice(2);
const usual = { ranks: 1, checkpointInterval: 2, maxSteps: 6, seqLen: 64, rankTimeoutS: 60, more: {} };
const trainer = new PrimeRlTrainer({ python: python!, ...usual });
await trainer.open(model!, { lora: null, seed: 1 });
const batch = batchOf(await rowsOf(model!));
for (let step = 1; step <= 3; step++)
  await trainer.trainStep({ plan: planOf({ step, loss: lossOf('dppo') }), batch, referenceFolder: model! });
