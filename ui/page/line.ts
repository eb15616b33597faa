/** A line of a chart: a metric with its name for people. */
export interface Line {
  readonly metric: string;
  readonly label: string;
  /** Names of the metrics between which the line's color is drawn faintly. */
  readonly band?: { readonly low: string; readonly high: string };
}
