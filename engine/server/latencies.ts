/** Upper bounds in seconds. */
const firstTokenBounds = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 40, 160];
const betweenTokensBounds = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 1, 5];
const requestBounds = [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];

/** Prometheus' cumulative histogram. */
export class Histogram {
  readonly bounds: readonly number[];
  readonly counts: number[];
  sum = 0;
  count = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.counts = bounds.map(() => 0);
  }

  observe(value: number): void {
    this.sum += value;
    this.count++;
    const bucket = this.bounds.findIndex((bound) => value <= bound);
    if (bucket >= 0) this.counts[bucket]!++;
  }
}

/** Waiting times of clients, in seconds. */
export class Latencies {
  /** From the request's arrival at the sampler to a choice's first token. */
  readonly firstToken = new Histogram(firstTokenBounds);
  /** From one token of a choice to the next. */
  readonly betweenTokens = new Histogram(betweenTokensBounds);
  /** From a request's arrival at the sampler to its last token. */
  readonly request = new Histogram(requestBounds);

  watch(choices: number): { sawToken: (index: number) => void; sawEnd: () => void } {
    const startedAt = performance.now();
    const lastAt = new Float64Array(choices);
    return {
      sawToken: (index) => {
        const now = performance.now();
        const last = lastAt[index]!;
        if (last === 0) this.firstToken.observe((now - startedAt) / 1000);
        else this.betweenTokens.observe((now - last) / 1000);
        lastAt[index] = now;
      },
      sawEnd: () => this.request.observe((performance.now() - startedAt) / 1000),
    };
  }
}
