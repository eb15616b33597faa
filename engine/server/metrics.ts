import type { SamplerCounters } from '../sample/sampler.ts';
import type { Histogram, Latencies } from './latencies.ts';

/** Content of GET /metrics, in Prometheus' text format 0.0.4. */
interface ServerMetrics {
  readonly requestsRunning: number;
  readonly requestsWaiting: number;
  readonly requestsTotal: number;
  readonly requestsRefused: number;
  readonly sampler: SamplerCounters;
  readonly generationTokensPerSecond: number;
  readonly promptTokensPerSecond: number;
  readonly versionsHeld: number;
  readonly weightBytes: number;
  readonly memoryBytes: number;
  readonly memoryBytesMax: number;
  readonly latencies: Latencies;
}

type Line = [name: string, type: 'gauge' | 'counter', help: string, value: number];

export function metricsText(metrics: ServerMetrics): string {
  const { latencies } = metrics;
  return [
    ...[...ownLines(metrics), ...vllmLines(metrics)].map(
      ([name, type, help, value]) => `${headOf(name, type, help)}${name} ${value}\n`,
    ),
    histogramText('ratchet_time_to_first_token_seconds', "Wait for a choice's first token.", latencies.firstToken),
    histogramText('ratchet_inter_token_seconds', 'Wait for each further token.', latencies.betweenTokens),
    histogramText('ratchet_request_seconds', 'Sampling of a whole request.', latencies.request),
  ].join('');
}

function ownLines(metrics: ServerMetrics): Line[] {
  const { sampler } = metrics;
  return [
    ['ratchet_requests_running', 'gauge', 'Requests being sampled.', metrics.requestsRunning],
    ['ratchet_requests_waiting', 'gauge', 'Requests that wait while the server is paused.', metrics.requestsWaiting],
    ['ratchet_requests_total', 'counter', 'Requests since the start.', metrics.requestsTotal],
    ['ratchet_requests_refused_total', 'counter', 'Requests answered with an error.', metrics.requestsRefused],
    ['ratchet_rows_running', 'gauge', 'Choices in the running batch.', sampler.rowsRunning],
    ['ratchet_rows_waiting', 'gauge', 'Choices that wait for room in a batch.', sampler.rowsWaiting],
    [
      'ratchet_key_value_bytes_used',
      'gauge',
      'Keys and values that running choices may come to need.',
      sampler.keyValueBytesUsed,
    ],
    [
      'ratchet_key_value_bytes_kept',
      'gauge',
      'Memory kept for keys and values, also of choices to come and of prompts.',
      sampler.keyValueBytesKept,
    ],
    ['ratchet_key_value_bytes_max', 'gauge', 'Keys and values there is room for.', sampler.keyValueBytesMax],
    ['ratchet_key_value_usage', 'gauge', 'The former over the latter.', keyValueUsage(sampler)],
    ['ratchet_generation_tokens_total', 'counter', 'Tokens sampled since the start.', sampler.tokensTotal],
    [
      'ratchet_generation_tokens_per_second',
      'gauge',
      'Tokens per second since the last look.',
      metrics.generationTokensPerSecond,
    ],
    ['ratchet_prompt_tokens_total', 'counter', 'Prompt tokens of all choices.', sampler.promptTokensTotal],
    [
      'ratchet_prompt_tokens_computed_total',
      'counter',
      'Prompt tokens that were computed; the others were shared.',
      sampler.promptTokensComputed,
    ],
    [
      'ratchet_prompt_tokens_per_second',
      'gauge',
      'Prompt tokens per second since the last look.',
      metrics.promptTokensPerSecond,
    ],
    ['ratchet_versions_held', 'gauge', 'Policy versions that can be sampled.', metrics.versionsHeld],
    ['ratchet_weight_bytes', 'gauge', 'Weights in memory, including what sessions hold of them.', metrics.weightBytes],
    ['ratchet_memory_bytes', 'gauge', 'Memory of the process.', metrics.memoryBytes],
    [
      'ratchet_memory_bytes_max',
      'gauge',
      'Memory budget of the process (memory_gb); 0 before the first version.',
      metrics.memoryBytesMax,
    ],
  ];
}

/**
 * Figures by which prime-rl's orchestrator sets its concurrency, under vLLM's names. They count choices, as in vLLM.
 */
function vllmLines({ sampler, requestsWaiting }: ServerMetrics): Line[] {
  return [
    ['vllm:num_requests_running', 'gauge', 'Choices in the running batch.', sampler.rowsRunning],
    [
      'vllm:num_requests_waiting',
      'gauge',
      'Choices and paused requests that wait.',
      sampler.rowsWaiting + requestsWaiting,
    ],
    ['vllm:kv_cache_usage_perc', 'gauge', 'Keys and values used, 1 = all.', keyValueUsage(sampler)],
    ['vllm:num_preemptions_total', 'counter', 'Always 0: what runs is never taken out.', 0],
    ['vllm:prompt_tokens_total', 'counter', 'Prompt tokens of all choices.', sampler.promptTokensTotal],
    ['vllm:generation_tokens_total', 'counter', 'Tokens sampled since the start.', sampler.tokensTotal],
  ];
}

function keyValueUsage({ keyValueBytesUsed, keyValueBytesMax }: SamplerCounters): number {
  return keyValueBytesMax === 0 ? 0 : keyValueBytesUsed / keyValueBytesMax;
}

function headOf(name: string, type: string, help: string): string {
  return `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n`;
}

function histogramText(name: string, help: string, { bounds, counts, sum, count }: Histogram): string {
  let below = 0;
  const buckets = bounds.map((bound, i) => `${name}_bucket{le="${bound}"} ${(below += counts[i]!)}\n`).join('');
  const end = `${name}_bucket{le="+Inf"} ${count}\n${name}_sum ${sum}\n${name}_count ${count}\n`;
  return headOf(name, 'histogram', help) + buckets + end;
}

/** Looks closer together than this repeat the last answer: a rate over milliseconds says nothing. */
const windowMsMin = 1000;

/** Tokens per second between one look and the next. */
export class TokenRate {
  #tokens = 0;
  #atMs = performance.now();
  #rate = 0;

  update(tokensTotal: number): number {
    const now = performance.now();
    if (now - this.#atMs < windowMsMin) return this.#rate;
    this.#rate = Math.max(0, ((tokensTotal - this.#tokens) / (now - this.#atMs)) * 1000);
    this.#tokens = tokensTotal;
    this.#atMs = now;
    return this.#rate;
  }
}
