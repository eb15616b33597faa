import type { Prompts, RunHandle } from '../../core/rl/run-state.ts';
import { storeOf } from '../run-access.ts';

/** Texts of system prompts in use, by environment; a missing environment has its own. */
export async function textsOfPrompts(
  run: Pick<RunHandle, 'name' | 'store'>,
  prompts: Prompts = {},
): Promise<ReadonlyMap<string, string>> {
  const texts = await Promise.all(
    Object.entries(prompts).map(async ([name, { ref }]) => {
      return [name, Buffer.from(await storeOf(run).get(ref)).toString('utf8')] as const;
    }),
  );
  return new Map(texts);
}
