import { z } from 'zod';
import { RatchetError } from '../../../core/errors.ts';
import type { VllmSpec } from '../../../config/models/vllm-spec.ts';
import { failpoint } from '../../../store/failpoints.ts';
import type { HttpAnswer } from '../http-client.ts';
import type { ModelServer } from '../model-server.ts';
import { noVersionLabel } from './vllm-names.ts';

/** The routes of vLLM's OpenAI server beyond OpenAI's own (0.32), and those of prime-rl's wrapper around it. */

const Models = z.object({ data: z.array(z.object({ id: z.string(), parent: z.string().nullish() })) });
const Paused = z.looseObject({ is_paused: z.literal(true) });
const WeightInfo = z.object({ weight_version: z.string() });

interface VllmModelList {
  /** The initial model, under the first of its names. */
  readonly base: string;
  /** All names that it lists. */
  readonly names: readonly string[];
  /** Oldest first. */
  readonly adapters: readonly { readonly id: string }[];
}

/** Loading weights takes as long as reading them: minutes for a large model over a network. */
const loadMs = 600_000;

/** The first request examines its whole machine: packages and drivers. */
const serverInfoMs = 60_000;
const ServerInfo = z.object({ vllm_config: z.string() });

/** A vLLM's float type from its settings (`/server_info` with VLLM_SERVER_DEV_MODE=1); null if not reported. */
export async function readFloatType(server: Pick<ModelServer, 'send'>): Promise<string | null> {
  const { status, json } = await server.send('GET', '/server_info', undefined, { timeoutMs: serverInfoMs });
  const read = ServerInfo.safeParse(json);
  if (status >= 300 || !read.success) return null;
  return /\bdtype=(?:torch\.)?(\w+)/.exec(read.data.vllm_config)?.[1] ?? null;
}

export class VllmRoutes {
  readonly #server: Pick<ModelServer, 'root' | 'send' | 'refusal'>;
  readonly #wanted: VllmSpec['weights'];
  #base: string | null = null;
  #hasLabel = true;

  constructor(server: Pick<ModelServer, 'root' | 'send' | 'refusal'>, wanted: VllmSpec['weights']) {
    this.#server = server;
    this.#wanted = wanted;
  }

  async models(): Promise<VllmModelList> {
    const read = Models.safeParse((await this.#ok('GET', '/v1/models')).json);
    const all = read.success ? read.data.data : [];
    const base = all.find(({ parent }) => parent == null);
    if (!base) {
      throw new RatchetError(
        'InferenceUnavailable',
        `${this.#server.root}/v1/models names no model. Is it a vLLM server?`,
      );
    }
    this.#base = base.id;
    return { base: base.id, names: all.map(({ id }) => id), adapters: all.filter(({ parent }) => parent != null) };
  }

  async baseModel(): Promise<string> {
    return this.#base ?? (await this.models()).base;
  }

  /** Does nothing if the name has the same adapter already. */
  async loadAdapter(name: string, folder: string): Promise<void> {
    const route = '/v1/load_lora_adapter';
    const answer = await this.#server.send(
      'POST',
      route,
      { lora_name: name, lora_path: folder },
      { timeoutMs: loadMs },
    );
    if (answer.status < 300 || (answer.status === 400 && /already been loaded/.test(answer.text))) return;
    if (answer.status === 405 || (answer.status === 404 && !/lora/i.test(answer.text))) {
      throw new RatchetError(
        'Unsupported',
        `${this.#server.root} takes no adapters (${route} answered ${answer.status}). Start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or leave [inference] url out and Ratchet starts one.`,
      );
    }
    if (answer.status === 404) throw this.#unseen(folder, answer);
    if (/max_lora_rank/.test(answer.text)) {
      throw new RatchetError(
        'Unsupported',
        `${this.#server.root} was started for adapters of a lower rank: ${answer.text.slice(0, 300)} Start it with max_lora_rank in [inference.vllm] of the run that it is started from, as large as the largest [lora] r of the runs that share it.`,
      );
    }
    throw this.#server.refusal(route, answer);
  }

  /** Idempotent. */
  async unload(name: string): Promise<void> {
    const route = '/v1/unload_lora_adapter';
    const answer = await this.#server.send('POST', route, { lora_name: name });
    if (answer.status >= 300 && answer.status !== 404) throw this.#server.refusal(route, answer);
  }

  /** Requests in flight pause between two tokens, and continue with the new weights, even if the exchange fails. */
  async exchangeWeights(folder: string, label: string): Promise<void> {
    const isPrimeRl = await this.#isPrimeRl();
    await this.#ok('POST', isPrimeRl ? '/pause?mode=keep&clear_cache=false' : '/pause?mode=keep');
    try {
      if (isPrimeRl) await this.#ok('POST', '/update_weights', { weight_dir: folder }, loadMs);
      else {
        await this.label(noVersionLabel); // until it is done
        await this.#ok(
          'POST',
          '/collective_rpc',
          { method: 'reload_weights', kwargs: { weights_path: folder } },
          loadMs,
        );
        await this.#ok('POST', '/reset_prefix_cache');
        await this.label(label); // before anything is sampled from them
      }
      await failpoint('vllm.exchanged');
    } finally {
      await this.#ok('POST', '/resume');
    }
  }

  /** Resumes a server whose exchanging process died during the pause. */
  async resumeIfPaused(): Promise<void> {
    const { status, json } = await this.#server.send('GET', '/is_paused');
    if (status < 300 && Paused.safeParse(json).success) await this.#ok('POST', '/resume');
  }

  /** Whether it supports a label for its weights, as far as known. */
  get hasLabel(): boolean {
    return this.#hasLabel;
  }

  /** Label of its weights; null if it supports none. */
  async readLabel(): Promise<string | null> {
    const answer = await this.#server.send('GET', '/weight_info');
    this.#hasLabel = answer.status !== 404 && answer.status !== 405;
    if (!this.#hasLabel) return null;
    const read = WeightInfo.safeParse(answer.json);
    if (answer.status >= 300 || !read.success) throw this.#server.refusal('/weight_info', answer);
    return read.data.weight_version;
  }

  /** Labels its weights; does nothing if it supports no labels. */
  async label(text: string): Promise<void> {
    const route = '/update_weight_version';
    const answer = await this.#server.send('POST', route, { new_version: text });
    if (answer.status >= 300 && answer.status !== 404) throw this.#server.refusal(route, answer);
  }

  /** Seconds since 1970; null if not reported. */
  async processStart(): Promise<number | null> {
    const { status, text } = await this.#server.send('GET', '/metrics');
    const said = status < 300 ? /^process_start_time_seconds (\S+)$/m.exec(text)?.[1] : undefined;
    return said === undefined ? null : Number(said);
  }

  /** Which of the two ways for full weights it has. Both have an /update_weights; vLLM's own is one end of a transfer. */
  async #isPrimeRl(): Promise<boolean> {
    if (this.#wanted !== 'auto') return this.#wanted === 'update_weights';
    const [transfer, wrapper, rpc] = await Promise.all(
      ['/init_weight_transfer_engine', '/update_weights', '/collective_rpc'].map(async (route) => this.#has(route)),
    );
    if (wrapper && !transfer) return true;
    if (rpc) return false;
    throw new RatchetError(
      'Unsupported',
      `${this.#server.root} cannot be given full weights while it runs: it has neither /collective_rpc (vLLM with VLLM_SERVER_DEV_MODE=1) nor prime-rl's /update_weights. Start it so, train adapters ([lora]), or leave [inference] url out and Ratchet starts one.`,
    );
  }

  async #has(route: string): Promise<boolean> {
    const { status } = await this.#server.send('GET', route);
    return status !== 404;
  }

  async #ok(
    method: 'GET' | 'POST',
    route: string,
    body?: unknown,
    timeoutMs?: number,
  ): Promise<HttpAnswer & { readonly json: unknown }> {
    const answer = await this.#server.send(method, route, body, timeoutMs === undefined ? {} : { timeoutMs });
    if (answer.status < 300) return answer;
    throw this.#server.refusal(route, answer);
  }

  /** A store that the other machine sees later than we do, or never. */
  #unseen(folder: string, { text }: HttpAnswer): RatchetError {
    return new RatchetError(
      'InferenceUnavailable',
      `${this.#server.root} does not find the adapter in ${folder}: ${text.slice(0, 300)} That is a folder of the workers' machine: share it with the server's under the same path, or start \`ratchet weights-agent\` there and name it in [inference] weights_agent.`,
    );
  }
}
