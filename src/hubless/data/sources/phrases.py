"""Phrases: what the clients of the synthetic fleet want, and the words they say it in."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product


def _list(text: str) -> list[str]:
    return [phrase.strip() for phrase in text.split(",")]


_ONES = _list(
    "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, "
    "fourteen, fifteen, sixteen, seventeen, eighteen, nineteen"
)
_TENS = _list("twenty, thirty, forty, fifty, sixty, seventy, eighty, ninety")
_NUMBERS = [*_ONES, *(f"{ten} {one}".strip() for ten, one in product(_TENS, ["", *_ONES[:9]]))]
_HOURS = _ONES[:12]
_ADJECTIVES = _list(
    "silver, paper, golden, quiet, velvet, midnight, crooked, electric, hollow, amber, "
    "distant, little, northern, burning, lazy, wild, frozen, gentle, broken, lucky"
)
_NOUNS = _list(
    "rivers, foxes, windows, lanterns, sparrows, gardens, engines, islands, mirrors, mountains, "
    "letters, shadows, oceans, bridges, clouds, wolves, trains, orchards, candles, comets"
)


SLOTS: dict[str, list[str]] = {
    # the first values of a slot are said most
    "clock": [
        *(f"{hour} thirty" for hour in _HOURS[5:9]),
        *(f"{hour} o'clock" for hour in _HOURS),
        *(f"{part} {hour}" for part in ("half past", "quarter past") for hour in _HOURS),
        *(f"{minute} to {hour}" for minute in ("quarter", "ten", "five") for hour in _HOURS),
    ],
    "day": _list(
        "tomorrow, today, tonight, on monday, on tuesday, on wednesday, on thursday, on friday, "
        "on saturday, on sunday, this weekend, next week"
    ),
    "duration": _list(
        "ten minutes, five minutes, twenty minutes, fifteen minutes, thirty minutes, one hour, "
        "three minutes, eight minutes, two minutes, twelve minutes, forty five minutes, "
        "twenty five minutes, seven minutes, half an hour, two hours, ninety seconds, one minute, "
        "six minutes, eleven minutes, three hours"
    ),
    "number": _NUMBERS,
    "percent": [f"{ten} percent" for ten in ("fifty", "twenty", "eighty", "thirty", "seventy")],
    "degrees": [f"{number} degrees" for number in _NUMBERS[17:24]],
    "room": _list(
        "living room, kitchen, bedroom, hallway, bathroom, office, dining room, nursery, garage, "
        "basement, attic, porch"
    ),
    "colour": _list("blue, warm white, red, green, purple, orange, pink, yellow"),
    "contact": _list(
        "mom, dad, grandma, my sister, my brother, the office, ada, alma, amir, anika, ben, "
        "carla, chen, dora, elias, emma, farid, felix, greta, hana, hugo, ines, ivan, jana, jonas, "
        "kofi, lena, leo, lucia, malik, maria, mei, mila, nadia, niko, noor, olga, omar, paul, "
        "petra, priya, rafael, rosa, sam, sofia, tariq, thea, tom, uma, vera, victor, wanda, "
        "yara, yusuf, zoe"
    ),
    "message": _list(
        "i am on my way, i will be late, call me back, happy birthday, good night, see you soon, "
        "dinner is ready, where are you, thank you, i am home, can you pick up the kids, "
        "let us have lunch, the train is late, do not forget the keys, i miss you, "
        "the meeting is over, are you up, bring some bread, have a safe trip, well done"
    ),
    "item": _list(
        "milk, eggs, bread, coffee, bananas, butter, paper towels, apples, cheese, pasta, rice, "
        "tomatoes, onions, olive oil, yogurt, potatoes, cat food, dog food, soap, batteries, tea, "
        "flour, sugar, lemons, garlic, carrots, spinach, chicken, fish, tofu, shampoo, toothpaste, "
        "light bulbs, oat milk, honey, jam, cereal, chocolate, peanut butter, mushrooms, peppers, "
        "cucumbers, lettuce, beans, lentils, salt, vinegar, juice, sparkling water, ice cream"
    ),
    "list": _list("shopping list, grocery list, list, hardware store list, party list"),
    "chore": _list(
        "take out the trash, water the plants, call the dentist, feed the cat, pay the rent, "
        "pick up the laundry, take my medicine, walk the dog, buy stamps, charge the car, "
        "book the flights, clean the oven, renew my passport, call the plumber, drink some water, "
        "return the library books, change the filter, send the invoice, stretch, "
        "check the mail, defrost the freezer, turn off the oven, practice the piano, "
        "back up the laptop, buy a present, move the car, close the windows, read to the kids"
    ),
    "song": [f"{adjective} {noun}" for noun, adjective in product(_NOUNS, _ADJECTIVES)],
    "artist": [
        f"the {adjective} {noun}" for noun, adjective in product(_NOUNS[::3], _ADJECTIVES[::-2])
    ],
    "genre": _list(
        "jazz, classical music, pop, rock, lullabies, country, hip hop, blues, folk, techno, "
        "soul, reggae, opera, salsa, metal, film music"
    ),
    "city": _list(
        "london, paris, new york, berlin, tokyo, madrid, rome, chicago, boston, lisbon, vienna, "
        "mumbai, nairobi, toronto, sydney, oslo, dublin, seattle, cairo, lima, seoul, athens, "
        "prague, helsinki, istanbul, denver, lagos, hanoi, montreal, zurich, glasgow, porto"
    ),
    "language": _list(
        "spanish, french, german, italian, japanese, portuguese, hindi, korean, polish, swedish, "
        "turkish, dutch, greek, arabic"
    ),
    "word": _list(
        "hello, thank you, good morning, please, goodbye, water, bread, where is the station, "
        "how much is it, i am lost, cheers, friend, sorry, tomorrow, a table for two, the bill, "
        "good luck, left, right, happy new year, my name is, ice cream, help, i love you"
    ),
    "topic": _list(
        "the moon, black holes, volcanoes, honey bees, the eiffel tower, blue whales, mars, "
        "the roman empire, penguins, rainbows, glaciers, the human heart, electricity, dinosaurs, "
        "the olympics, coral reefs, earthquakes, chess, the internet, the nile, photosynthesis, "
        "mount everest, owls, the speed of light, octopuses, bridges, tea, violins, cacti, magnets"
    ),
    "dish": _list(
        "pancakes, lasagna, pumpkin soup, banana bread, chili, curry, risotto, apple pie, "
        "roast chicken, ramen, paella, tacos, lentil soup, omelettes, focaccia, gnocchi, "
        "dumplings, granola, ratatouille, gingerbread, potato salad, falafel, brownies, hummus"
    ),
    "team": [
        f"the {city} {noun}"
        for noun, city in product(
            ("wolves", "comets", "foxes", "sparrows"),
            ("boston", "lisbon", "denver", "glasgow", "oslo", "toronto", "porto", "lagos"),
        )
    ],
    "place": _list(
        "the airport, work, the station, school, the stadium, the beach, the hospital, "
        "the old town, the harbour, the museum, grandma's house, the zoo"
    ),
    "holiday": _list("christmas, new year's eve, thanksgiving, hanukkah, diwali, halloween"),
    "plant": _list("tomatoes, roses, basil, strawberries, tulips, mint, sunflowers, lavender"),
    "story": [
        f"the {animal} and the {thing}"
        for thing, animal in product(
            ("moon", "snow", "lighthouse", "pirate", "robot", "wishing well"),
            ("bear", "fox", "owl", "hedgehog", "dragon", "mouse", "whale", "rabbit"),
        )
    ],
    "sound": _list(
        "rain, ocean, forest, fireplace, waterfall, wind, thunderstorm, river, night train, "
        "coffee shop"
    ),
    "game": _list(
        "animal quiz, word ladder, twenty questions, song quiz, mystery island, true or false, "
        "capital quiz, number hunt, escape the castle, space trader"
    ),
    "camera": _list("front door, driveway, back yard, garage, nursery, side gate"),
    "device": _list(
        "washing machine, dishwasher, heater, fridge, car charger, dryer, oven, television, fan, "
        "dehumidifier"
    ),
    "routine": _list(
        "good morning, bedtime, movie night, leaving home, dinner time, homework, work from home, "
        "vacation"
    ),
}

OWN = {"contact": 6, "clock": 4, "room": 3, "artist": 5, "item": 12, "team": 2, "routine": 3}
"""How many values of a slot a client returns to; the others are anybody's each time."""


@dataclass(frozen=True)
class Intent:
    """Something that clients want: its share of all utterances, how that changes, and its words.

    Over the whole time the share grows by a factor of e to the `growth`; through the year it
    swings by e to plus or minus `swing`, highest in the calendar month `peak`; before the fraction
    `appears` of the time nobody knows of it.
    """

    name: str
    share: float
    templates: tuple[str, ...]
    growth: float = 0.0
    swing: float = 0.0
    peak: int = 1
    appears: float = 0.0

    def first_month(self, months: int) -> int:
        """The first of so many months, counted from 0, in which anybody wants this.

        >>> Intent("dance", 1, ("dance",), appears=4 / 12).first_month(12)
        4
        """
        return int(self.appears * months + 1e-9)


INTENTS = (
    Intent("alarm", 7, ("wake me up at {clock}", "set an alarm for {clock} {day}", "snooze",
                        "cancel my alarm", "what time is my alarm {day}")),
    Intent("timer", 9, ("set a timer for {duration}", "set a timer for {duration} for the {dish}",
                        "how much time is left", "stop the timer", "cancel the timer")),
    Intent("weather", 8, ("what's the weather", "what's the weather {day}", "will it rain {day}",
                          "what's the weather in {city} {day}", "do i need an umbrella {day}")),
    Intent("music", 14, ("play {song} by {artist}", "play some {genre}", "play {artist}",
                         "play {genre} in the {room}", "next song", "pause the music",
                         "what song is this", "play {song}")),
    Intent("volume", 6, ("turn it up", "turn it down", "volume {number}", "mute",
                         "set the volume to {percent}"), growth=-0.6),
    Intent("lights", 9, ("turn on the {room} light", "turn off the {room} light", "lights off",
                         "dim the {room} to {percent}", "make the {room} {colour}",
                         "turn on the light in the {room} at {clock}"), swing=0.5, peak=12),
    Intent("heating", 3, ("set the {room} to {degrees}", "make it warmer", "make it cooler",
                          "how warm is the {room}", "heat the {room} until {clock}"),
           swing=1.2, peak=1),
    Intent("call", 5, ("call {contact}", "call {contact} on speaker", "hang up", "answer",
                       "call {contact} at {clock}"), growth=-0.9),
    Intent("message", 4, ("text {contact} {message}", "tell {contact} {message}",
                          "read my messages", "any messages from {contact}"), growth=0.9),
    Intent("shopping", 5, ("add {item} to my {list}", "order {item}", "do we need {item}",
                           "what's on my {list}", "remove {item} from my {list}")),
    Intent("reminder", 4, ("remind me to {chore}", "remind me to {chore} {day}",
                           "remind me to {chore} at {clock}", "what are my reminders {day}",
                           "remind {contact} to {chore}")),
    Intent("time", 3, ("what time is it", "what time is it in {city}", "what day is it")),
    Intent("news", 3, ("what's the news", "play the news from {city}", "news about {topic}"),
           growth=-0.5),
    Intent("joke", 2, ("tell me a joke", "tell me a joke about {topic}", "another one")),
    Intent("sums", 2, ("what's {number} times {number}", "what's {number} plus {number}",
                       "what's {percent} of {number}"), swing=0.8, peak=10),
    Intent("translate", 1.5, ("how do you say {word} in {language}", "translate {word}"),
           swing=0.8, peak=7),
    Intent("facts", 3, ("tell me about {topic}", "tell me more about {topic}",
                        "what do you know about {topic}", "ask me about {topic}")),
    Intent("recipe", 2, ("how do i make {dish}", "find a recipe for {dish}", "next step",
                         "what goes with {dish}", "can i make {dish} without {item}"),
           swing=0.6, peak=11),
    Intent("sport", 2, ("did {team} win", "when do {team} play", "when do {team} play in {city}"),
           swing=0.9, peak=5),
    Intent("traffic", 1.5, ("how long to {place}", "how's the traffic to {place}",
                            "when should i leave for {place} to be there at {clock}")),
    Intent("story", 1.5, ("tell me a story", "read {story}", "tell me the story of {story}"),
           growth=0.5),
    Intent("garden", 1, ("water the {plant}", "when should i plant {plant}",
                         "water the {plant} for {duration}"), swing=1.8, peak=6),
    Intent("countdown", 1, ("how many days until {holiday}", "when is {holiday}",
                            "play {holiday} songs"), swing=2.2, peak=11),
    Intent("sleep", 2.5, ("play {sound} sounds", "play {sound} sounds for {duration}",
                          "help me sleep"), growth=0.8, appears=2 / 12),
    Intent("game", 3, ("play {game}", "start {game} with {contact}", "what's my score in {game}",
                       "let's play a game"), appears=4 / 12),
    Intent("camera", 2.5, ("show me the {camera}", "who is at the {camera}",
                           "is anyone at the {camera}"), growth=1.0, appears=6 / 12),
    Intent("energy", 2, ("how much power does the {device} use", "is the {device} running",
                         "run the {device} at {clock}"), growth=0.6, appears=8 / 12),
    Intent("routine", 3, ("start {routine}", "start {routine} at {clock}", "stop {routine}"),
           appears=10 / 12),
)  # fmt: skip
