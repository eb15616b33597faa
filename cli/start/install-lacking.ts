import { installEngine } from '../../workers/install/engine.ts';
import { print } from '../output/print.ts';
import type { ChosenSampler } from './choose-sampler.ts';
import { torchObstacles } from './engine-lacks.ts';

/** Installs PyTorch and vLLM where the run would have them, or its file asks for them; true when one was. */
export async function installLacking({ lacking, looked }: Pick<ChosenSampler, 'lacking' | 'looked'>): Promise<boolean> {
  const isTorchLacking = looked !== null && (await torchObstacles(looked.spec)).length > 0;
  const wanted = new Set([...lacking, ...(isTorchLacking ? (['torch'] as const) : [])]);
  for (const engine of wanted) await installEngine(engine, print);
  return wanted.size > 0;
}
