import type { PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import { decodeJson, encodeJson } from '../backends/store/objects.ts';
import type { ServedPolicy } from '../backends/inference/index.ts';
import { layout } from './layout.ts';
import { isVersion } from './record-shapes.ts';
import { servedPolicy, storeOf } from './run-access.ts';

/** The newest version that all servers of a run hold, for rollouts that take it between two turns. It decides nothing that is stored. */
export async function noteServed(run: RunHandle, policy: PolicyVersion): Promise<void> {
  await storeOf(run).put(layout.served(run.lineage), encodeJson(policy));
}

/** For so long the same is taken to be the newest. */
const lookAgainMs = 1_000;

/** The newest version, or `from` while there is none later. Looked for again from time to time, once for all who ask. */
export function newestServed(run: RunHandle, from: ServedPolicy): () => Promise<ServedPolicy> {
  let [newest, at] = [from, performance.now()];
  let looking: Promise<ServedPolicy> | null = null;
  const look = async (): Promise<ServedPolicy> => {
    const key = layout.served(run.lineage);
    const bytes = await storeOf(run).read(key);
    if (bytes === null) return newest;
    const version = decodeJson<PolicyVersion>(bytes, key, (value) => ({ 'a version': isVersion(value) }));
    const { step, replay = 0 } = newest.version;
    if (version.step < step || (version.step === step && (version.replay ?? 0) <= replay)) return newest;
    return servedPolicy(run, version, { isRead: false });
  };
  return () => {
    if (performance.now() - at < lookAgainMs) return Promise.resolve(newest);
    looking ??= look()
      .then((found) => (newest = found))
      .finally(() => {
        at = performance.now();
        looking = null;
      });
    return looking;
  };
}
