/** What GET /metrics tells, in Prometheus' text format 0.0.4. */
export interface ServerMetrics {
  readonly requestsRunning: number;
  readonly requestsWaiting: number;
  readonly rowsRunning: number;
  readonly rowsWaiting: number;
  readonly tokensTotal: number;
  readonly tokensPerSecond: number;
  readonly versionsHeld: number;
}

type Line = [name: string, type: 'gauge' | 'counter', help: string, value: number];

export function metricsText(metrics: ServerMetrics): string {
  const lines: Line[] = [
    ['ratchet_requests_running', 'gauge', 'Requests being sampled.', metrics.requestsRunning],
    ['ratchet_requests_waiting', 'gauge', 'Requests that wait while the server is paused.', metrics.requestsWaiting],
    ['ratchet_rows_running', 'gauge', 'Choices in the running batch.', metrics.rowsRunning],
    ['ratchet_rows_waiting', 'gauge', 'Choices that wait for room in a batch.', metrics.rowsWaiting],
    ['ratchet_generation_tokens_total', 'counter', 'Tokens sampled since the start.', metrics.tokensTotal],
    [
      'ratchet_generation_tokens_per_second',
      'gauge',
      'Tokens per second since the last look.',
      metrics.tokensPerSecond,
    ],
    ['ratchet_versions_held', 'gauge', 'Policy versions in memory.', metrics.versionsHeld],
  ];
  return lines
    .map(([name, type, help, value]) => `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${name} ${value}\n`)
    .join('');
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
