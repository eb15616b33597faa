/** The suites that every adapter is run by (`ratchet/testing`), over the Tinker API as the stand-in of SkyRL speaks it. */
import { mkdtemp, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before } from 'node:test';
import { TinkerInference } from '../../backends/inference/tinker.ts';
import {
  inferenceContract,
  lossOf,
  planOf,
  rowsOf,
  type ServedPolicy,
  temporaryFolder,
  trainerContract,
} from '../../backends/testing/index.ts';
import { readVersion } from '../../backends/tinker/version-files.ts';
import { TinkerTrainer } from '../../backends/trainer/tinker.ts';
import { presetFiles } from '../../engine/index.ts';
import { type StandIn, startTinkerStandIn } from '../stand-ins/tinker/server.ts';

const model = 'preset:reverse-text-0.2m';
const part = {
  lora: {
    r: 4,
    alpha: 32,
    dropout: 0,
    targetModules: ['q_proj', 'k_proj', 'v_proj', 'o_proj', 'gate_proj', 'up_proj', 'down_proj'],
  },
  seed: 3,
};

let folder: string;
let server: StandIn;
let first: string;
before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'ratchet-tinker-contract-'));
  server = await startTinkerStandIn({ folder: path.join(folder, 'server'), model, maxAdapters: 64 });
  first = path.join(folder, 'first');
  const trainer = openTrainer();
  await trainer.makeBase(first, { ...part, files: presetFiles(model) });
  await trainer.close();
});
after(async () => {
  await server?.close();
  await rm(folder, { recursive: true, force: true });
});

trainerContract('a Tinker server', {
  open: () => Promise.resolve(openTrainer()),
  model: () => Promise.resolve(first),
  part,
  promises: {
    losses: ['cispo', 'grpo', 'importance_sampling', 'cross_entropy'],
    aggregations: ['token', 'sequence', 'dr_grpo'],
    exactReplay: true,
    savesOptimizer: true,
    refuses: true,
    supervises: true,
    scores: true,
    exportsModels: true,
  },
});

inferenceContract('a Tinker server', {
  async versions(t) {
    const root = await temporaryFolder(t);
    const trainer = openTrainer();
    await trainer.open(first, part);
    await trainer.restoreOptimizer(null);
    const samples = await rowsOf(first, { count: 32, seed: 5 });
    const made: ServedPolicy[] = [];
    for (const step of [1, 2]) {
      const batch = { samples: samples.slice(16 * (step - 1), 16 * step) };
      for (let pass = 0; pass < 4; pass++)
        await trainer.trainStep({ plan: planOf({ loss: lossOf('cross_entropy'), learningRate: 2e-2 }), batch });
      const to = path.join(root, `step_${step}`);
      await trainer.exportTo(to);
      const { digest } = await readVersion(to);
      const version = { step, digest, weights: '', file: { key: '', sha256: '', bytes: 0 } };
      made.push({ name: `contract:main:${step}`, folder: to, version });
    }
    await trainer.close();
    return { root, versions: [made[0]!, made[1]!] };
  },
  open: () =>
    Promise.resolve(
      new TinkerInference({
        kind: 'tinker',
        url: server.url,
        apiKeyVar: null,
        server: 'skyrl',
        timeoutS: 60,
        maxConcurrent: 64,
      }),
    ),
  promises: { seeds: true, scores: true, holds: 'held', truncates: true, readsModels: true },
});

function openTrainer(): TinkerTrainer {
  return new TinkerTrainer({
    kind: 'tinker',
    url: server.url,
    apiKeyVar: null,
    server: 'skyrl',
    baseModel: null,
    reduction: 'sequence_mean',
    checkpointTtlS: null,
  });
}
