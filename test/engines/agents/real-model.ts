/** A real model as the policy of a program: SmolLM2 from its package, sampled freely by the embedded engine in this process. */
import { loadModelFolder, Sampler } from '../../../engine/index.ts';
import { getPackagedModel } from '../../../backends/hub/packaged-models.ts';
import type { Model } from '../../environments/agent/scripted-policy.ts';

export interface RealModel extends Model {
  close(): Promise<void>;
}

/** null where it cannot be fetched; standard error says why. */
export async function openRealModel(): Promise<RealModel | null> {
  const say = (line: string): void => void process.stderr.write(`${line}\n`);
  const packaged = await getPackagedModel('smollm2-135m-instruct', { say }).catch((error: Error) => say(error.message));
  if (!packaged) return null;
  const { tokenizer, parameters, config } = await loadModelFolder(packaged.folder);
  const sampler = await Sampler.open(config, { threads: 1 });
  return {
    tokenizer,
    async sample({ promptTokenIds, maxTokens, temperature, seed, signal }) {
      const request = { promptTokenIds, maxTokens, temperature, seed, stopTokenIds: config.endTokenIds };
      const [sample] = await sampler.generate(parameters, [request], signal ? { signal } : {});
      return sample!;
    },
    close: () => sampler.release(),
  };
}
