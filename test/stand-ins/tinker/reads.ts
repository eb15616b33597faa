import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import type { Journal } from './journal.ts';
import type { StandInOptions } from './options.ts';
import { Refusal } from './refusal.ts';
import type { Slots } from './slots.ts';
import { tar, tarGz } from './tar.ts';

/** Answers what is asked by GET: the server's state, and the files of checkpoints. */
export class Reads {
  readonly #options: StandInOptions;
  readonly #journal: Journal;
  readonly #slots: Slots;
  readonly #portOf: () => number;

  constructor(options: StandInOptions, journal: Journal, slots: Slots, portOf: () => number) {
    this.#options = options;
    this.#journal = journal;
    this.#slots = slots;
    this.#portOf = portOf;
  }

  answer(route: string): unknown {
    if (route.endsWith('/healthz')) return { status: 'ok' };
    if (route.endsWith('/get_server_capabilities')) return { supported_models: [{ model_name: this.#options.model }] };
    const archive = /training_runs\/([\w-]+)\/checkpoints\/([\w-]+)\/archive$/.exec(route);
    const { checkpoints } = this.#journal.remembered;
    if (archive) {
      const checkpoint = `${archive[1]}/sampler_weights/${archive[2]}`;
      if (!checkpoints.has(checkpoint)) throw new Refusal(404, `Checkpoint not found: ${checkpoint}`);
      const folder = this.#slots.folderOf(checkpoint);
      if (this.#options.isLikeTuft) return pathToFileURL(folder);
      return this.#options.merges ? tar(folder) : tarGz(folder);
    }
    if (route.endsWith('/training_runs')) {
      const { models } = this.#journal.remembered;
      const runs = [...models.keys()]
        .toReversed()
        .map((model) => ({ training_run_id: model, base_model: this.#options.model }));
      return { training_runs: runs };
    }
    const external =
      /training_runs\/([\w-]+)\/checkpoints\/external_weights\/([\w-]+)\/(external_weights_urls|\w+\.\w+)$/.exec(route);
    if (external) {
      const [, model, wanted, file = ''] = external;
      const folder = this.#slots.folderOf(`${model}/external_weights/${wanted}`);
      if (file.includes('.')) return readFileSync(path.join(folder, file));
      const urlOf = (one: string) => `http://127.0.0.1:${this.#portOf()}${route.replace(file, one)}`;
      return { urls: Object.fromEntries(readdirSync(folder).map((one) => [one, urlOf(one)])) };
    }
    const listed = /training_runs\/([\w-]+)\/checkpoints$/.exec(route);
    if (!listed) throw new Refusal(404, 'Not Found');
    const own = [...checkpoints].filter((checkpoint) => checkpoint.startsWith(`${listed[1]}/`));
    return { checkpoints: own.map((checkpoint) => ({ tinker_path: `tinker://${checkpoint}` })) };
  }
}
