"""The closed vocabulary of the synthetic tasks."""

from __future__ import annotations

NAMES = (
    "Tom Anna Ben Clara David Emma Frank Grace Henry Iris Jack Kate Leo Mary Nick Olga Paul "
    "Rosa Sam Tina Victor Wendy Alex Bella Carl Dora Eric Fiona Greg Helen Ivan Julia Karl "
    "Lucy Mark Nina Oscar Petra Ralf Sara"
).split()
CITIES = (
    "Paris Berlin Rome Madrid London Vienna Oslo Tokyo Cairo Lima Delhi Seoul Athens Dublin "
    "Prague Warsaw Lisbon Helsinki Boston Sydney"
).split()
CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "England": "London",
    "Austria": "Vienna",
    "Norway": "Oslo",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "India": "New Delhi",
    "South Korea": "Seoul",
    "Greece": "Athens",
    "Ireland": "Dublin",
    "Poland": "Warsaw",
    "Portugal": "Lisbon",
    "Finland": "Helsinki",
    "Sweden": "Stockholm",
    "Denmark": "Copenhagen",
    "China": "Beijing",
    "Russia": "Moscow",
    "Canada": "Ottawa",
    "Turkey": "Ankara",
    "Hungary": "Budapest",
}
COLOURS = {
    "a banana": "yellow",
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "blood": "red",
    "an orange": "orange",
    "a lemon": "yellow",
    "a tomato": "red",
    "the sea": "blue",
    "a leaf": "green",
    "milk": "white",
    "chocolate": "brown",
    "a frog": "green",
    "a flamingo": "pink",
    "a crow": "black",
    "an elephant": "grey",
    "a carrot": "orange",
    "the sun": "yellow",
    "a plum": "purple",
}
SOUNDS = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "duck": "quack",
    "sheep": "baa",
    "pig": "oink",
    "lion": "roar",
    "bee": "buzz",
    "owl": "hoot",
    "horse": "neigh",
    "mouse": "squeak",
    "snake": "hiss",
    "frog": "ribbit",
    "bird": "tweet",
    "wolf": "howl",
    "crow": "caw",
}
LEGS = {
    "dog": 4,
    "cat": 4,
    "spider": 8,
    "bird": 2,
    "ant": 6,
    "snake": 0,
    "horse": 4,
    "fish": 0,
    "bee": 6,
    "duck": 2,
    "cow": 4,
    "crab": 10,
}
OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "up": "down",
    "fast": "slow",
    "good": "bad",
    "light": "dark",
    "old": "new",
    "happy": "sad",
    "wet": "dry",
    "open": "closed",
    "early": "late",
    "hard": "soft",
    "high": "low",
    "rich": "poor",
    "loud": "quiet",
    "left": "right",
    "full": "empty",
    "long": "short",
    "strong": "weak",
    "day": "night",
}
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December".split()
)
WORDS = (
    "cat dog sun moon tree fish bird book door house river stone apple bread chair cloud "
    "dance earth flame glass heart juice knife lemon money night ocean paper queen radio "
    "sugar table uncle voice water zebra green black white happy quick small brave light "
    "storm train music plant sheep tiger clock bridge castle forest garden hammer island "
    "jacket kitten ladder market needle orange pencil rabbit silver summer window yellow "
    "winter butter candle dragon engine flower guitar helmet insect jungle kettle lizard "
    "mirror nature pepper rocket"
).split()
NUMBER_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
ADJECTIVES = (
    "old young tall quiet happy brave tired clever small friendly strange busy careful funny "
    "gentle lonely"
).split()
PEOPLE = (
    "farmer teacher doctor sailor baker painter soldier singer student driver gardener miller"
    " hunter nurse pilot tailor"
).split()
PLACES = (
    "market forest river station garden library castle harbour school bridge kitchen village "
    "mountain museum theatre field"
).split()
VERBS = "walks runs goes travels returns rides comes hurries".split()
THINGS = (
    "basket letter lamp hat coat rope map bottle box drum kite wheel ring spoon bell blanket"
).split()
TIMES = "in the morning|at night|before lunch|after dinner|every Monday|in the rain|on Sunday|at noon|in winter|in summer|with a friend|without a word".split(
    "|"
)
SKIES = "sunny cloudy rainy windy snowy foggy stormy clear".split()
PROJECTS = (
    "apollo borealis cobalt dynamo ember falcon granite horizon indigo juniper kestrel "
    "lantern meteor nimbus orchid phoenix quartz raven sierra tundra"
).split()
