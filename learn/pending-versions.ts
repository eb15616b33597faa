import { randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, rm, rmdir, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { RatchetError } from '../core/errors.ts';
import { layout, stepOf } from '../runs/layout.ts';
import { versionsPendingMax } from '../core/limits.ts';
import { firstLineage } from '../core/names.ts';
import type { Canary } from '../core/rl/learning/canary.ts';
import type { ObjectRef, OptimizerState, PolicyVersion, RunHandle } from '../core/rl/run-state.ts';
import { sha256 } from '../store/file-store.ts';
import { sumFolder } from '../store/version-files.ts';
import { encodeStored } from '../runs/forms/stored-forms.ts';
import { storeOf } from '../runs/run-access.ts';
import { pendingNames } from '../runs/lineages/settle-version.ts';
import { listedFiles, optimizerFolder, optimizerName } from '../runs/versions/optimizer-state.ts';

export interface PendingVersion {
  readonly policy: PolicyVersion;
  readonly optimizer: ObjectRef | null;
  /** Pending place in the run's own folder, from which its commit moves it; null when it is to be copied. */
  readonly pendingAt: string | null;
}

/** A version that is not written yet. `weights`: its folder in the store; by default the one of its lineage. */
export type MadeVersion = Omit<PolicyVersion, 'file' | 'sums' | 'weights'> & Partial<Pick<PolicyVersion, 'weights'>>;

interface PendingInput {
  readonly version: MadeVersion;
  /** `base`: the model that adapters name as their base. */
  readonly write: (folder: string, options: { readonly base: string }) => Promise<void>;
  /** Saves the optimizer's state, in the empty folder where it is files. */
  readonly optimizer: ((folder: string) => Promise<OptimizerState>) | null;
  /** Called once the weights are written. */
  readonly canary: () => Promise<Canary | null>;
}

/** The place that a version is written to. */
interface PendingPlace {
  readonly folder: string;
  /** Path for programs that write the files. */
  readonly at: string;
  readonly pendingAt: string | null;
}

interface Entry extends PendingVersion {
  readonly owner: string;
  readonly folder: string;
  /** Files in the order they are stored: a folder with weights is complete. */
  readonly files: readonly { readonly key: string; readonly file: string }[];
}

/**
 * Versions between the step that made them and their place in the store. In a folder store they are written into it and
 * later moved; otherwise, or with `isElsewhere`, they are on this process's own disk and later copied. Bounded: the
 * oldest is dropped, and made again by replay when needed.
 */
export class PendingVersions {
  readonly #root: string;
  readonly #isElsewhere: boolean;
  #entries: Entry[] = [];
  #count = 0;

  constructor(root: string, { isElsewhere = false }: { readonly isElsewhere?: boolean } = {}) {
    this.#root = root;
    this.#isElsewhere = isElsewhere;
  }

  find(run: RunHandle, version: Pick<PolicyVersion, 'step' | 'digest'>): PendingVersion | null {
    const entry = this.#find(run, version);
    return entry && versionOf(entry);
  }

  async add(run: RunHandle, input: PendingInput): Promise<PendingVersion> {
    const { staging } = storeOf(run);
    const { step, digest } = input.version;
    const pendingAt =
      staging && !this.#isElsewhere
        ? layout.pending(run.lineage, step, `${digest.slice(0, 16)}.${randomUUID().slice(0, 8)}`)
        : null;
    const staged = pendingAt === null ? null : await staging!.folder(pendingAt);
    const folder = staged?.path ?? path.join(this.#root, String(this.#count++));
    const place = { folder, at: staged?.at ?? folder, pendingAt };
    try {
      const entry = await this.#write(run, place, input);
      const known = this.#find(run, entry.policy);
      const kept = [...this.#entries.filter((other) => other !== known), entry];
      const over = [...(known ? [known] : []), ...kept.slice(0, -versionsPendingMax)];
      this.#entries = kept.slice(-versionsPendingMax);
      for (const old of over) await removePending(run, old);
      return versionOf(entry);
    } catch (error) {
      await removePending(run, place);
      throw fullDisk(named(error, place), folder);
    } finally {
      await staged?.close();
    }
  }

  /** Stores a version in the run's store, its weights last; false when it is not here. Idempotent. */
  async publish(run: RunHandle, policy: PolicyVersion, mayWrite: () => Promise<void>): Promise<boolean> {
    const entry = this.#find(run, policy);
    if (!entry) return false;
    for (const { key, file } of entry.files) {
      if (!existsSync(file)) {
        this.#entries = this.#entries.filter((other) => other !== entry);
        return false; // removed by someone: it is made again
      }
      await mayWrite();
      await storeOf(run).putFile(key, file);
    }
    return true;
  }

  async #write(
    run: RunHandle,
    { folder, at, pendingAt }: PendingPlace,
    { version, write, optimizer, canary }: PendingInput,
  ): Promise<Entry> {
    const { staging } = storeOf(run);
    const exported = path.join(at, pendingNames.weights);
    await mkdir(exported, { recursive: true, mode: 0o700 });
    const prefix = version.weights ?? layout.weights(run.lineage, version.step, version.replay);
    await write(exported, { base: pathToBase(prefix) });
    const seal = async (below: string): Promise<void> =>
      pendingAt === null ? undefined : staging!.seal(pendingAt + below);
    const summing = sumFolder(storeOf(run), exported, prefix);
    const [{ file, sums, names }, scored] = await Promise.all([
      summing,
      canary(),
      summing.then(() => seal(pendingNames.weights)),
    ]);
    const policy: PolicyVersion = { ...version, weights: prefix, file, sums };
    const beside: { key: string; file: string }[] = [];
    const add = async (name: string, key: string, content: Uint8Array): Promise<ObjectRef> => {
      await writeFile(path.join(at, name), content);
      beside.push({ key, file: path.join(folder, name) });
      return { key, sha256: sha256(content), bytes: content.byteLength };
    };
    const state = optimizer && (await addOptimizer());
    if (scored) {
      const key = layout.canary(run.lineage, version.step, version.replay);
      await add(pendingNames.canary, key, encodeStored(key, scored));
    }
    await seal('');
    const weights = path.join(folder, pendingNames.weights);
    const files = [...beside, ...names.map((name) => ({ key: prefix + name, file: path.join(weights, name) }))];
    return { policy, optimizer: state, pendingAt, owner: ownerOf(run), folder, files };

    async function addOptimizer(): Promise<ObjectRef> {
      const checkpoint = layout.checkpoint(run.lineage, version.step);
      const place = path.join(at, optimizerFolder);
      await mkdir(place, { mode: 0o700 });
      const saved = await optimizer!(place);
      if (saved instanceof Uint8Array) {
        await rmdir(place);
        return add(optimizerName, checkpoint + optimizerName, saved);
      }
      const { ref, files: listed } = await listedFiles(place, checkpoint + optimizerFolder);
      for (const { key } of [...listed, ref])
        beside.push({ key, file: path.join(folder, key.slice(checkpoint.length)) });
      return ref;
    }
  }

  /** Compares the step as well: a step that changes nothing has the digest of the one before. */
  #find(run: RunHandle, { step, digest }: Pick<PolicyVersion, 'step' | 'digest'>): Entry | null {
    const isIt = ({ owner, policy }: Entry) =>
      owner === ownerOf(run) && policy.step === step && policy.digest === digest;
    return this.#entries.find(isIt) ?? null;
  }
}

/** Through the store if it waits there: another user may have put a link into its path. */
async function removePending(
  run: RunHandle,
  { folder, pendingAt }: Pick<PendingPlace, 'folder' | 'pendingAt'>,
): Promise<void> {
  if (pendingAt === null) await rm(folder, { recursive: true, force: true });
  else await storeOf(run).removeAll(pendingAt);
}

/** An error of a program that wrote through `at`, with the folder's name. */
function named(error: unknown, { folder, at }: PendingPlace): unknown {
  if (error instanceof Error && at !== folder) error.message = error.message.replaceAll(`${at}/`, `${folder}/`);
  return error;
}

function versionOf({ policy, optimizer, pendingAt }: Entry): PendingVersion {
  return { policy, optimizer, pendingAt };
}

function ownerOf(run: RunHandle): string {
  return `${run.store}${run.name}/${run.lineage}`;
}

function fullDisk(error: unknown, folder: string): unknown {
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  if (code !== 'ENOSPC' && code !== 'EDQUOT') return error;
  return new RatchetError(
    'StoreFull',
    `No space left in ${folder}, where new weights wait for their upload. Free some space, or set RATCHET_PENDING to a folder on another disk; the run continues by itself.`,
    { cause: error },
  );
}

/** Place in which files are made that are stored below `prefix` without a commit that moves them there. */
export function madeAt(run: RunHandle, prefix: string): { readonly prefix: string; readonly pendingAt: string } {
  return { prefix, pendingAt: layout.pending(run.lineage, stepOf(prefix) ?? 0, `made.${randomUUID().slice(0, 8)}`) };
}

/** From another folder of the run to the weights that adapters name as their base. */
export function pathToBase(folder: string): string {
  return path.posix.relative(folder, layout.weights(firstLineage, 0));
}
