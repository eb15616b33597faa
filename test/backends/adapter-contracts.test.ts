/** The suites that every adapter is run by (`ratchet-rl/testing`), over our own. */
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { randomStream } from '../../core/random.ts';
import { OnnxTrainer } from '../../backends/trainer/onnx.ts';
import createInference from '../../configs/own-engine/my-inference.ts';
import createTrainer from '../../configs/own-engine/my-trainer.ts';
import { writeTable } from '../../configs/own-engine/table.ts';
import { openInference } from '../../backends/inference/index.ts';
import { contractLosses, inferenceContract, trainerContract, trainVersions } from '../../backends/testing/index.ts';
import { InferenceSpec } from '../../config/run-spec.ts';
import { startPolicyServer } from '../../engine/index.ts';

const lora = { r: 4, alpha: 8, dropout: 0, targetModules: ['q_proj', 'v_proj', 'o_proj', 'down_proj'] };

trainerContract('the embedded engine', {
  open: () => Promise.resolve(new OnnxTrainer({ threads: 1 })),
  promises: {
    losses: contractLosses,
    penalizesKl: true,
    exactReplay: true,
    savesOptimizer: true,
    refuses: true,
    supervises: true,
    scores: true,
    exportsModels: true,
  },
});

trainerContract('the embedded engine with adapters', {
  open: () => Promise.resolve(new OnnxTrainer({ threads: 1 })),
  part: { lora, seed: 3 },
  promises: {
    losses: contractLosses,
    exactReplay: true,
    savesOptimizer: true,
    refuses: true,
    supervises: true,
    scores: true,
    exportsModels: true,
  },
});

for (const part of [null, lora]) {
  inferenceContract(`the embedded policy server${part ? ' with adapters' : ''}`, {
    versions: (t) => trainVersions(t, { part: { lora: part, seed: 1 } }),
    async open(t, { root }) {
      const server = await startPolicyServer({ key: null, host: '127.0.0.1', port: 0, allowRoots: [root], threads: 1 });
      t.after(() => server.close());
      return openInference(InferenceSpec.parse({ kind: 'embedded', url: server.url }), '');
    },
    promises: {
      seeds: true,
      scores: true,
      scoresPrompts: true,
      holds: 'held',
      truncates: true,
      stops: true,
      contextTokens: 64,
      temperatures: [1, 0.7],
      readsModels: true,
    },
  });
}

trainerContract('the example of docs/guide/adapters.md', {
  open: () => Promise.resolve(createTrainer()),
  learningRate: 0.1,
  promises: {
    losses: ['importance_sampling'],
    temperatures: [1, 0.7],
    exactReplay: true,
    savesOptimizer: true,
    refuses: true,
    supervises: true,
    scores: true,
  },
});

inferenceContract('the example of docs/guide/adapters.md', {
  /** Its weights are tables, one with a seed for each version. */
  async versions(t) {
    const folders = await trainVersions(t);
    for (const [v, { folder }] of folders.versions.entries()) {
      const random = randomStream('table', v);
      const { vocab_size: size } = JSON.parse(await readFile(path.join(folder, 'config.json'), 'utf8')) as {
        vocab_size: number;
      };
      await writeTable(folder, { size, logits: Float32Array.from({ length: size * size }, () => 3 * random()) });
    }
    return folders;
  },
  open: () => Promise.resolve(createInference()),
  promises: { seeds: true, temperatures: [1, 0.7] },
});
