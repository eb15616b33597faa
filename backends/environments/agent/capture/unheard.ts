/** Answers whose program went away before it had them, by their question: it may ask again. */
export class Unheard<Answer> {
  readonly #answers = new Map<string, Promise<Answer>[]>();

  take(question: string): Promise<Answer> | undefined {
    return this.#answers.get(question)?.shift();
  }

  /** `forget` is called with the answer, once there is one and while nobody has asked for it. */
  put(question: string, answer: Promise<Answer>, forget: (answer: Answer) => void): void {
    const waiting = this.#answers.get(question) ?? [];
    this.#answers.set(question, [...waiting, answer]);
    const stillWaits = (): boolean => this.#answers.get(question)?.includes(answer) === true;
    answer.then(
      (given) => stillWaits() && forget(given),
      () => {
        const left = this.#answers.get(question)?.filter((other) => other !== answer);
        this.#answers.set(question, left ?? []);
      },
    );
  }
}
