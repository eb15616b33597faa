import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import { test } from 'node:test';
import { parseRunConfig } from '../../config/parse-run-config.ts';
import { openRunStore } from '../../store/index.ts';
import { appendMetrics, readMetrics } from '../../runs/metrics/metrics.ts';
import type { MetricsRow } from '../../core/rl/metric-rows.ts';
import { RunSinks } from '../../runs/metrics/run-sinks.ts';
import { mlflowSink } from '../../workers/metrics/sink-settings.ts';
import { choosePort } from '../../workers/stack/ports.ts';

/** A Python with MLflow's server; tried with `pip install mlflow==3.17.2`. */
const python = process.env['RATCHET_MLFLOW_PYTHON'];

/** Metrics read by MLflow's own client, as [lineage, key, step, value]. */
const readBack = `
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name("ratchet")
found = []
for run in client.search_runs([experiment.experiment_id]):
    lineage = run.data.tags["ratchet.lineage"]
    for key in run.data.metrics:
        found += [[lineage, key, point.step, point.value] for point in client.get_metric_history(run.info.run_id, key)]
print(json.dumps({"points": found, "model": [run.data.params["model"] for run in client.search_runs([experiment.experiment_id])]}))
`;

for (const backend of ['sqlite', 'files']) {
  test(
    `MLflow with ${backend} has what metrics.jsonl has, each number once, also after kills`,
    { skip: python ? false : 'RATCHET_MLFLOW_PYTHON names no Python with MLflow' },
    async (t) => {
      const folder = await mkdtemp(path.join(tmpdir(), 'ratchet-mlflow-'));
      t.after(() => rm(folder, { recursive: true, force: true }));
      const port = await choosePort(5000);
      const address = `http://127.0.0.1:${port}`;
      const uri = backend === 'sqlite' ? `sqlite:///${folder}/mlflow.db` : path.join(folder, 'mlruns');
      const args = ['-m', 'mlflow', 'server', '--host', '127.0.0.1', '--port', String(port), '--workers', '1'];
      const server = spawn(python!, [...args, '--backend-store-uri', uri], {
        stdio: 'ignore',
        detached: true,
        env: { ...process.env, MLFLOW_ALLOW_FILE_STORE: 'true' },
      });
      t.after(() => process.kill(-server.pid!, 'SIGKILL'));
      const isThere = () =>
        fetch(`${address}/health`).then(
          ({ ok }) => ok,
          () => false,
        );
      while (!(await isThere())) {
        if (server.exitCode !== null) throw new Error(`mlflow server ended with ${server.exitCode}`);
        await new Promise((resolve) => setTimeout(resolve, 500));
      }

      const store = openRunStore(`${pathToFileURL(folder).href}/`, 'words');
      const text = `model = "preset:reverse-text-0.2m"\nname = "words"\n[[env]]\nid = "reverse-text"\n[mlflow]\ntracking_uri = "${address}"\n`;
      const parsed = parseRunConfig(text, { file: 'words.toml' });
      assert(parsed.ok);
      const { spec } = parsed;
      const told: string[] = [];
      for (let attempt = 0; attempt < 4; attempt++) {
        const lineage = attempt === 3 ? 'l2' : 'main';
        for (let step = attempt * 10; step < attempt * 10 + 10; step++) {
          const time = new Date(Date.UTC(2026, 10, 21, 0, 0, step)).toISOString();
          await appendMetrics(store, {
            step,
            lineage,
            time,
            'train/reward': step / 8,
            'eval/words/pass@4': 1 / (step + 1),
          });
        }
        const sink = mlflowSink(spec, spec.mlflow!, 'f00d');
        const sinks = new RunSinks(store, [sink], (line) => void told.push(line));
        // Each but the last is "killed" after the server has all, and before it was noted: the tag is put back.
        while (!sinks.isUpToDate) {
          await sinks.advance();
          await new Promise((resolve) => setTimeout(resolve, 50));
        }
        if (attempt < 3) await setBack(address, attempt * 10);
        else await sinks.close(true);
      }

      const { stdout } = await promisify(execFile)(python!, ['-c', readBack, address]);
      const { points, model } = JSON.parse(stdout) as { points: [string, string, number, number][]; model: string[] };
      const expected = (await readMetrics(store)).flatMap((row: MetricsRow) =>
        ['train/reward', 'eval/words/pass@4'].map((key) => [row.lineage, key.replace('@', '_at_'), row.step, row[key]]),
      );
      const sorted = (list: readonly unknown[]): string[] => list.map((one) => JSON.stringify(one)).sort();
      assert.deepEqual(sorted(points), sorted(expected), told.join('\n'));
      assert.deepEqual(model, ['preset:reverse-text-0.2m', 'preset:reverse-text-0.2m']);
    },
  );
}

/** Restores the state after a kill between a batch's metrics and its tags. */
async function setBack(address: string, next: number): Promise<void> {
  interface Answer {
    readonly runs?: readonly { readonly info: { readonly run_id: string } }[];
    readonly experiment?: { readonly experiment_id: string };
  }
  const ask = async (route: string, body?: object): Promise<Answer> => {
    const headers = { 'content-type': 'application/json' };
    const request = body ? { method: 'POST', headers, body: JSON.stringify(body) } : {};
    const answer = await fetch(`${address}/api/2.0/mlflow/${route}`, request);
    assert(answer.ok, await answer.clone().text());
    return (await answer.json()) as Answer;
  };
  const { experiment } = await ask('experiments/get-by-name?experiment_name=ratchet');
  const { runs } = await ask('runs/search', {
    experiment_ids: [experiment!.experiment_id],
    filter: "tags.`ratchet.lineage` = 'main'",
    max_results: 1,
  });
  await ask('runs/set-tag', { run_id: runs![0]!.info.run_id, key: 'ratchet.next', value: String(next) });
}
