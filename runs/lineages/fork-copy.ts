import path from 'node:path';
import { firstLineage } from '../../core/names.ts';
import { RatchetError } from '../../core/errors.ts';
import type { ObjectRef, PolicyVersion, Prompts, StepCommit } from '../../core/rl/run-state.ts';
import type { RunSpec } from '../../config/run-spec.ts';
import type { Store } from '../../store/index.ts';
import { putSums, type ReadAnew, sumsName, verifyVersion } from '../../store/version-files.ts';
import { decodeStored } from '../forms/stored-forms.ts';
import { layout, recordsName, roundOf } from '../layout.ts';
import { copyOptimizer, verifyOptimizer } from '../versions/checkpoints.ts';

/** Copies objects of one run to another's first lineage. Idempotent. */
export class Copy {
  readonly #from: Store;
  readonly #to: Store;
  /** Files that are unchanged since they were compared are not read again. */
  readonly #read: ReadAnew = new Map();

  constructor(from: Store, to: Store) {
    this.#from = from;
    this.#to = to;
  }

  /** Throws when a byte to be copied has changed, or an object is gone. */
  async verify({ policy, optimizer, state }: StepCommit, { keepsGroups }: { readonly keepsGroups: boolean }) {
    for (const version of [policy, state.reference]) await verifyVersion(this.#from, version, { anew: this.#read });
    const { curriculum, surplus, prompts = {}, offeredPrompts = {} } = state;
    const groups = keepsGroups ? surplus.map(({ scored }) => scored) : [];
    const texts = [prompts, offeredPrompts].flatMap((entries) => Object.values(entries).map(({ ref }) => ref));
    for (const ref of [curriculum.pools, ...groups, ...texts]) if (ref) await this.#from.get(ref);
    if (optimizer) await verifyOptimizer(this.#from, optimizer);
  }

  async version(version: PolicyVersion): Promise<PolicyVersion> {
    const weights = layout.weights(firstLineage, version.step, version.replay);
    await verifyVersion(this.#from, version, { anew: this.#read });
    const sums = await this.folder(version.weights, weights);
    const file = { ...version.file, key: weights + path.posix.basename(version.file.key) };
    return { ...version, weights, file, sums };
  }

  async object(ref: ObjectRef, key: string): Promise<ObjectRef> {
    await this.#to.put(key, await this.#from.get(ref));
    return { ...ref, key };
  }

  optimizer(ref: ObjectRef, prefix: string): Promise<ObjectRef> {
    return copyOptimizer(this.#from, ref, { store: this.#to, prefix });
  }

  /** Prompts of environments that the new run has as well; undefined without any. */
  async prompts(prompts: Prompts | undefined, { environments }: RunSpec): Promise<Prompts | undefined> {
    if (prompts === undefined) return undefined;
    const kept = Object.entries(prompts).filter(([name]) => environments.some((entry) => entry.name === name));
    for (const [, { ref }] of kept) await this.object(ref, ref.key);
    return kept.length === 0 ? undefined : Object.fromEntries(kept);
  }

  /** Copies the results that people read of a round, if present. */
  async results(
    scored: string,
    environment: string,
    runs: { readonly from: string; readonly to: string },
  ): Promise<void> {
    const round = roundOf(scored);
    const chunk = round?.chunk;
    if (!round || chunk === undefined) return;
    const [source, target] = [runs.from, runs.to].map((run) =>
      layout.resultsOfChunk(round.lineage, round, { environment, run, chunk }),
    ) as [string, string];
    for (const name of [recordsName, 'metadata.json']) {
      const bytes = await this.#from.read(source + name);
      if (bytes) await this.#to.put(target + name, bytes);
    }
  }

  /** Rebuilds the list of its files, since an adapter's path to its base changes. */
  async folder(prefix: string, target: string): Promise<ObjectRef> {
    const local = await this.#from.localFolder(prefix);
    const copied: ObjectRef[] = [];
    for (const key of await this.#from.list(prefix)) {
      const name = key.slice(prefix.length);
      if (name === sumsName) continue;
      if (name !== 'adapter_config.json') {
        copied.push(await this.#to.putFile(target + name, path.join(local, name)));
        continue;
      }
      const bytes = await this.#from.read(key);
      if (!bytes) throw new RatchetError('CheckpointDamaged', `${key} went away from ${this.#from.uri}.`);
      copied.push(await this.#to.put(target + name, onFirstLineage(bytes, key, target)));
    }
    return putSums(this.#to, target, copied);
  }
}

/** An adapter names its base by a path relative to its own folder. */
function onFirstLineage(bytes: Uint8Array, key: string, folder: string): Uint8Array {
  const config = decodeStored<Record<string, unknown>>(bytes, key);
  const base = path.posix.relative(folder, layout.weights(firstLineage, 0));
  return Buffer.from(`${JSON.stringify({ ...config, base_model_name_or_path: base }, null, 2)}\n`);
}
