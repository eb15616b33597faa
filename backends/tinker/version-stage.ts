import { rm } from 'node:fs/promises';
import path from 'node:path';
import { randomUUID } from 'node:crypto';
import type { TinkerTrainerSpec } from '../../config/run-spec.ts';
import type { TinkerClient } from './client.ts';
import { downloadWeights } from './download.ts';
import type { TinkerModel } from './model.ts';
import { takeWeights, weightFilesOf } from './version-files.ts';
import { adapterFile, inspectWeights, makePeft } from './weight-files.ts';
import { openTemporaryFolder } from '../../host/temporary-folder.ts';

interface Staged {
  readonly weights: string;
  readonly digest: string;
  /** Name of a tensor with a number that is not finite. */
  readonly strange: string | null;
}

/** Folders of this process, below TMPDIR, with the weights of the version in work and of the one before. */
export class VersionStage {
  readonly #client: TinkerClient;
  readonly #checkpointDir: string | null;
  #root: Promise<string> | null = null;
  #folders: string[] = [];

  constructor(client: TinkerClient, { checkpointDir }: Pick<TinkerTrainerSpec, 'checkpointDir'>) {
    this.#client = client;
    this.#checkpointDir = checkpointDir ?? null;
  }

  /** Downloads what a sampler's path names. `alpha` is that of an adapter, where its config has one. */
  async download(model: TinkerModel, samplerPath: string): Promise<Staged & { readonly alpha: number | null }> {
    const folder = await this.#make();
    const download = { client: this.#client, model, samplerPath, checkpointDir: this.#checkpointDir };
    await downloadWeights(download, folder);
    const isAdapter = (await weightFilesOf(folder)).includes(adapterFile);
    const alpha = isAdapter ? await makePeft(folder) : null;
    return { ...(await this.#inspected(folder)), alpha };
  }

  /** Keeps the weights of a version's folder, which may go away. */
  async take(from: string): Promise<Staged> {
    const seen = await inspectWeights(from, await weightFilesOf(from));
    const folder = await this.#make();
    await takeWeights(from, folder);
    return { weights: folder, ...seen };
  }

  async clear(): Promise<void> {
    const root = await this.#root;
    this.#root = null;
    this.#folders = [];
    if (root !== undefined && root !== null) await rm(root, { recursive: true, force: true });
  }

  async #inspected(folder: string): Promise<Staged> {
    return { weights: folder, ...(await inspectWeights(folder, await weightFilesOf(folder))) };
  }

  async #make(): Promise<string> {
    this.#root ??= openTemporaryFolder('tinker');
    const folder = path.join(await this.#root, randomUUID());
    this.#folders = [...this.#folders, folder];
    for (const old of this.#folders.splice(0, this.#folders.length - 2))
      await rm(old, { recursive: true, force: true });
    return folder;
  }
}
