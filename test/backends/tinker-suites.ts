/** The suites that every adapter is run by (`ratchet-rl/testing`), over a server of the Tinker API: the stand-in here, SkyRL in test/engines. */
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe } from 'node:test';
import { TinkerInference } from '../../backends/inference/tinker.ts';
import {
  inferenceContract,
  contractLosses,
  lossOf,
  planOf,
  rowsOf,
  type ServedPolicy,
  trainerContract,
  type VersionFolders,
} from '../../backends/testing/index.ts';
import { readVersion } from '../../backends/tinker/version-files.ts';
import { TinkerTrainer } from '../../backends/trainer/tinker.ts';
import { presetFiles } from '../../engine/index.ts';
import { batchOf } from '../../core/rl/learning/batch.ts';

const part = {
  lora: {
    r: 4,
    alpha: 32,
    dropout: 0,
    targetModules: ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
  },
  seed: 3,
};

export interface ServedTinker {
  readonly url: string;
  /** Dialect of the server, and the environment variable with its key; by default SkyRL's, and no key. */
  readonly server?: 'tinker' | 'skyrl';
  readonly apiKeyVar?: string;
  readonly checkpointDir?: string;
  /** Folder of the model that it has, which is the preset's. */
  readonly base: string;
  readonly close: () => Promise<void> | void;
}

export interface TinkerSuiteOptions {
  readonly preset: string;
  /** Called once, before the tests; in a folder that goes with them. */
  readonly start: (folder: string) => Promise<ServedTinker>;
  /** It loads an adapter without Adam's moments where that is asked. */
  readonly startsAfresh: boolean;
  /** It holds one model: no reference of a KL penalty, and no second version to sample from. */
  readonly holdsOne?: boolean;
  /** Value for `node:test`'s skip option. */
  readonly skip?: string | false;
}

export function tinkerContracts(
  name: string,
  { preset, start, startsAfresh, holdsOne = false, skip = false }: TinkerSuiteOptions,
): void {
  describe(`${name} keeps the contracts`, { skip }, () => {
    let folder: string;
    let server: ServedTinker;
    let first: string;

    const address = () => ({
      kind: 'tinker' as const,
      url: server.url,
      apiKeyVar: server.apiKeyVar ?? null,
      server: server.server ?? ('skyrl' as const),
    });
    const openTrainer = (): TinkerTrainer =>
      new TinkerTrainer({
        ...address(),
        baseModel: null,
        reduction: null,
        ...(server.checkpointDir === undefined ? {} : { checkpointDir: server.checkpointDir }),
        checkpointTtlS: null,
      });

    /** One set for all tests: a real server takes its time. */
    let versions: Promise<VersionFolders> | undefined;
    const trainVersions = async (): Promise<VersionFolders> => {
      const root = path.join(folder, 'versions');
      const trainer = openTrainer();
      await trainer.open(first, part);
      await trainer.restoreOptimizer(null);
      const samples = await rowsOf(first, { count: 32, seed: 5 });
      const made: ServedPolicy[] = [];
      for (const step of [1, 2]) {
        const batch = batchOf(samples.slice(16 * (step - 1), 16 * step));
        for (let pass = 0; pass < 4; pass++)
          await trainer.trainStep({ plan: planOf({ loss: lossOf('cross_entropy'), learningRate: 2e-2 }), batch });
        const to = path.join(root, `step_${step}`);
        await mkdir(to, { recursive: true });
        await trainer.exportTo(to);
        const { digest } = await readVersion(to);
        const version = {
          step,
          digest,
          weights: '',
          file: { key: '', sha256: '', bytes: 0 },
          sums: { key: '', sha256: '', bytes: 0 },
        };
        made.push({ name: `contract:main:${step}`, folder: to, version });
      }
      await trainer.close();
      return { root, versions: [made[0]!, made[1]!] };
    };

    before(async () => {
      folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-tinker-contract-'));
      server = await start(folder);
      first = path.join(folder, 'first');
      const trainer = openTrainer();
      await trainer.makeBase(first, { ...part, files: presetFiles(preset) });
      await trainer.close();
    });
    after(async () => {
      await server?.close();
      await rm(folder, { recursive: true, force: true });
    });

    trainerContract(name, {
      open: () => Promise.resolve(openTrainer()),
      model: () => Promise.resolve(first),
      base: () => server.base,
      part,
      promises: {
        losses: contractLosses,
        aggregations: ['token', 'sequence', 'dr_grpo'],
        penalizesKl: !holdsOne,
        exactReplay: true,
        savesOptimizer: true,
        startsAfresh,
        refuses: true,
        supervises: true,
        scores: true,
        exportsModels: true,
      },
    });

    if (holdsOne) return;
    inferenceContract(name, {
      versions: () => (versions ??= trainVersions()),
      open: () => Promise.resolve(new TinkerInference({ ...address(), timeoutS: 60, maxConcurrent: 64 })),
      promises: { seeds: true, scores: true, holds: 'held', truncates: true, readsModels: true },
    });
  });
}
